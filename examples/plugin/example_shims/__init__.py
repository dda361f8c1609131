"""Shims that torchcompat finds through this distribution's entry point."""
