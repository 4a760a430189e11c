"""`python -m gpuwatch` is `gpuwatch`."""

from gpuwatch.cli import main

if __name__ == "__main__":
    main()
