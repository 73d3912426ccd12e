"""Configuration: typed sections, YAML files and ``key=value`` overrides, cross-field checks."""
