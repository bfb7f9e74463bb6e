"""UDF libraries as their authors describe them, and the symbols of the functions."""
