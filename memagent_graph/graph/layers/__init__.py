"""The layers around a step of the fold: one feature each, none of which knows another."""
