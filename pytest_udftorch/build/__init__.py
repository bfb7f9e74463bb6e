"""From UDF sources to machine code and bitcode: compilers, their jobs and their cache."""
