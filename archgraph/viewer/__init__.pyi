from .show import view as view
