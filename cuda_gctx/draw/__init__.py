"""Drawing: SM maps, timelines and tables out of values. Measures nothing, and stands on nothing."""
