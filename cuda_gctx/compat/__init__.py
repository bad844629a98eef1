"""Functions and classes of other libraries, with their names and arguments, made of this package's contexts."""
