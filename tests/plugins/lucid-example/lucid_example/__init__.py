"""An example of a plugin for lucid-core and lucid-accel."""
