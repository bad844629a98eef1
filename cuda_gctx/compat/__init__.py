"""Drop-ins: functions and classes with the names and arguments of other libraries, based on this package's contexts."""
