"""A drawing as a PNG of few bytes."""

import io

COLOURS = 256  # all that a drawing needs


def opened(png: bytes):
    from PIL import Image

    return Image.open(io.BytesIO(png))


def small(png: bytes) -> bytes:
    """With a palette, for a third of the bytes. What is transparent stays as it is."""
    image = opened(png)
    if image.mode == "P" or (image.mode == "RGBA" and image.getextrema()[3] != (255, 255)):
        return png
    file = io.BytesIO()
    few = image.convert("RGB").quantize(COLOURS, dither=0)  # dots would make it larger
    few.save(file, "png", optimize=True, dpi=image.info.get("dpi"))
    return file.getvalue()
