"""Builds the CPU kernel and the loops of the cuts; the metadata is in setup.cfg."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

if sys.version_info < (3, 10):  # before any dependency is looked for, whose own error would come first
    sys.exit("dgl-gt needs Python 3.10 or newer, and this is Python %d.%d" % sys.version_info[:2])

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's clang has none; the kernel then runs on one thread

CPU = "dgl_gt/ops/cpu"
LOOPS = "dgl_gt/partition/cuts/native"


class BuildKernel(build_ext):
    """Builds with OpenMP, and without it where the compiler has none; ``optional`` bears a missing compiler.

    All files of both extensions compile at once, as many as there are processors.
    """

    def build_extensions(self):
        workers = os.cpu_count() or 1
        notices = [f"dgl-gt: compiling C++ on {workers} processors, which takes half a minute on two"]
        one_by_one = self.compiler.compile
        with ThreadPoolExecutor(workers) as pool:

            def compile_at_once(sources, **options):
                if notices:  # nothing is compiled, and nothing said, where all is up to date
                    print(notices.pop(), file=sys.stderr)
                return [
                    name for names in pool.map(lambda each: one_by_one([each], **options), sources) for name in names
                ]

            self.compiler.compile, self.parallel = compile_at_once, True
            super().build_extensions()

    for_checkout = True

    def run(self):
        self.for_checkout = self.inplace or self.editable_mode  # the first is 0 while setuptools builds
        super().run()

    def get_ext_filename(self, name):
        """In a wheel the name lacks the version of Python: the libraries have nothing of Python in them."""
        named = super().get_ext_filename(name)
        return named if self.for_checkout else f"{named.partition('.')[0]}.so"

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception:
            if not OPENMP:
                raise
            for flags in (ext.extra_compile_args, ext.extra_link_args):
                flags[:] = [flag for flag in flags if flag not in OPENMP]
            super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=[
        Extension(
            "dgl_gt.ops.cpu._kernel",
            sources=[f"{CPU}/{name}.cpp" for name in ("avx512", "avx2", "portable", "kernel")],
            depends=glob(f"{CPU}/*.h"),
            language="c++",
            extra_compile_args=[
                "-O2",
                "-g0",  # Python's own flags ask for debug symbols, which take a quarter of the time
                "-std=c++17",
                "-fvisibility=hidden",
                # Portable flags only: each file sets its own instruction set, and the call picks one.
                "-ffp-contract=fast",
                # Neither of these two changes a result; both let the compiler turn branches into vector selects.
                "-fno-math-errno",
                "-fno-trapping-math",
                "-Wno-psabi",  # no vector crosses the boundary of a function that is not inlined
                *OPENMP,
            ],
            extra_link_args=list(OPENMP),
            optional=True,
        ),
        Extension(
            "dgl_gt.partition.cuts.native._loops",
            sources=[f"{LOOPS}/{name}.cpp" for name in ("vertex_cut", "refine", "multilevel", "clusters")],
            depends=glob(f"{LOOPS}/*.h"),
            language="c++",
            extra_compile_args=["-O2", "-g0", "-std=c++17", "-fvisibility=hidden"],
            optional=True,
        ),
    ],
)
