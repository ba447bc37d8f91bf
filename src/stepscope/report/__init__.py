"""What a diagnosis looks like: JSON for programs, text for terminals, one HTML page for people.

Every renderer is a pure function of a `Diagnosis`. `story` puts a verdict into words once, for text
and page alike; the renderers only lay it out.
"""
