"""Renders a diagnosis as JSON, as text for terminals, or as one HTML page.

Every renderer is a pure function of a `Diagnosis`. `story` words a verdict once, for both text and
HTML; the renderers only do the layout.
"""
