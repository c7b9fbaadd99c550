"""What `gpu-check` and `cuda-host` share: finding NVRTC and CUDA's headers."""
import ctypes
import glob
import os
import subprocess

from peer import Missing


def packages(python):
    """Folders of NVIDIA's packages that this Python sees; torch brings them."""
    found = subprocess.run([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"], capture_output=True, text=True)
    return sorted(folder for root in found.stdout.split("\n") if root for folder in glob.glob(os.path.join(root, "*")))


def loads(library):
    try:
        ctypes.CDLL(library)
        return True
    except OSError:
        return False


def toolkit(python):
    """What has to be in the environment for the program to find NVRTC and the headers: where it looks by itself, or among a Python's packages."""
    environment, of_python = {}, packages(python)
    nvrtc = next((name for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12") if loads(name)), None)
    if nvrtc is None:
        files = [path for folder in of_python for path in glob.glob(os.path.join(folder, "lib", "libnvrtc.so.*"))]
        nvrtc = next((os.path.dirname(path) for path in files if loads(path)), None)
        if nvrtc is None:
            raise Missing("NVRTC (libnvrtc.so) is not found: install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, and add its lib folder to LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [nvrtc, os.environ.get("LD_LIBRARY_PATH")]))
    places = [os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"] + (["/usr"] if os.path.exists("/usr/bin/nvcc") else [])
    has_headers = lambda root: root and os.path.isfile(os.path.join(root, "include", "cuda_fp16.h"))
    root = next((place for place in places + of_python if has_headers(place)), None)
    if root is None:
        raise Missing("CUDA's headers (include/cuda_fp16.h) are not found: install the CUDA toolkit, or `pip install nvidia-cuda-runtime`, and set CUDA_PATH to the folder above include")
    environment["CUDA_PATH"] = root
    print(f"NVRTC: {nvrtc}; headers: {root}/include")
    return environment
