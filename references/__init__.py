"""The judge: what is right, and by how much a kernel may be wrong."""
