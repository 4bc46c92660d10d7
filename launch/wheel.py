#!/usr/bin/env python3
"""wheel.py BUNDLE SHARE VERSION GLIBC OUT: packs the portable bundle as a wheel (PEP 427).

The bundle becomes the package folder gpttrain/. The command `gpttrain` is an entry point that replaces itself with
gpttrain/bin/gpttrain. SHARE (manual page, completions) goes to share/ of the environment. SOURCE_DATE_EPOCH: time of
every file in the archive.
"""
import base64
import hashlib
import os
import sys
import time
import zipfile

ENTRY = '''"""Portable bundle of gpttrain. The command `gpttrain` replaces this process with gpttrain/bin/gpttrain."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "gpttrain")
    os.execv(program, [program] + sys.argv[1:])
'''


def tree(folder, prefix):
    """(name in the archive, bytes, executable) of every file, sorted."""
    out = []
    for top, folders, names in os.walk(folder, followlinks=True):
        for name in names:
            path = os.path.join(top, name)
            with open(path, "rb") as file:
                relative = os.path.relpath(path, folder)
                out.append((f"{prefix}/{relative}", file.read(), os.access(path, os.X_OK)))
    return sorted(out)


def main():
    bundle, share, version, glibc, out = sys.argv[1:]
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_x86_64"
    info = f"gpttrain-{version}.dist-info"
    with open(os.path.join(bundle, "README.md"), encoding="utf-8") as readme:
        metadata = (f"Metadata-Version: 2.1\nName: gpttrain\nVersion: {version}\n"
                    "Summary: Trainer of Transformer language models\nLicense: Apache-2.0\nRequires-Python: >=3.6\n"
                    f"Description-Content-Type: text/markdown\n\n{readme.read()}")
    files = [("gpttrain/__init__.py", ENTRY.encode(), False)]
    files += tree(bundle, "gpttrain")
    files += tree(share, f"gpttrain-{version}.data/data/share")
    files += [(f"{info}/METADATA", metadata.encode(), False),
              (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False),
              (f"{info}/entry_points.txt", b"[console_scripts]\ngpttrain = gpttrain:main\n", False)]
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), False))

    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(os.path.join(out, f"gpttrain-{version}-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data, executable in files:
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data)


if __name__ == "__main__":
    main()
