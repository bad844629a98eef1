// An empty library in the place of the real driver while the build links against it.
