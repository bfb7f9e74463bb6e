"""The models that the benches train and measure."""
