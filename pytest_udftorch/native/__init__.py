"""The native runtime, and the manifests that the LLVM passes read."""
