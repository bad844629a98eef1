"""What the recorder asks a driver: a module for each subject, which uses the driver alone and not this package."""
