"""See the README of this distribution."""
