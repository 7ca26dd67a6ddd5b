"""The role and the matrix view of every variable."""
