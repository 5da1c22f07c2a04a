from tests.training.conftest import fit, shapes

__all__ = ["fit", "shapes"]
