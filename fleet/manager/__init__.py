"""Observe, decide, act, report; where the past is read. The only room that names all others."""
