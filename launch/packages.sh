#!/usr/bin/env bash
# Packs the portable bundle in three forms: an archive, a Python wheel, a Debian package. The same sources, program and
# libraries give the same bytes. Needs what launch/bundle.sh needs, and python3; called by the target `packages`:
#   cmake --build --preset cpu --target packages             build/cpu/packages/:
#     gpttrain-VERSION-linux-x86_64.tar.gz                   a folder that runs wherever it is unpacked
#     gpttrain-VERSION-py3-none-manylinux_*_x86_64.whl       pip install FILE
#     gpttrain_VERSION_amd64.deb                             apt install ./FILE: also the manual page and completions
#   launch/packages.sh VERSION OUT PROGRAM BACKEND SOURCE [CUDNN_FRONTEND]     see launch/bundle.sh
set -euo pipefail
umask 022
version=$1 out=$2 program=$3 backend=$4 source=$5 frontend=${6:-}
command -v python3 >/dev/null || { echo "packages: needs python3, to write the wheel" >&2; exit 1; }
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -f "$out"/gpttrain[-_]*.{tar.gz,whl,deb}
ready=$work/ready  # a package gets its final place when all of it is written
mkdir "$ready"
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct 2>/dev/null || echo 315532800)  # time of every file inside
export SOURCE_DATE_EPOCH

bundle=$work/gpttrain-$version-linux-x86_64
"$source/launch/bundle.sh" "$program" "$backend" "$source" "$bundle" "$frontend"
cp "$source/LICENSE" "$bundle/licenses/gpttrain.txt"
chmod -R u=rwX,go=rX "$bundle"
glibc=$(sed -n 's/^glibc: \([0-9.]*\) or later$/\1/p' "$bundle/share/gpttrain/bundle.txt")

tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$(basename "$bundle")" |
  gzip -n >"$ready/$(basename "$bundle").tar.gz"

share=$work/share  # as below a prefix such as /usr
mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$bundle/bin/gpttrain" man >"$share/man/man1/gpttrain.1"
"$bundle/bin/gpttrain" completion bash >"$share/bash-completion/completions/gpttrain"
"$bundle/bin/gpttrain" completion zsh >"$share/zsh/vendor-completions/_gpttrain"
"$bundle/bin/gpttrain" completion fish >"$share/fish/vendor_completions.d/gpttrain.fish"
python3 "$source/launch/wheel.py" "$bundle" "$share" "$version" "$glibc" "$ready"

# The bundle lies in /usr/lib/gpttrain: its mpirun is not on the path.
deb=$work/deb
mkdir -p "$deb/DEBIAN" "$deb"/usr/{bin,lib,share/doc/gpttrain}
cp -r "$share" "$deb/usr/"
gzip -n9 "$deb/usr/share/man/man1/gpttrain.1"
mv "$bundle" "$deb/usr/lib/gpttrain"
ln -s ../lib/gpttrain/bin/gpttrain "$deb/usr/bin/gpttrain"
{
  cat "$source/LICENSE"
  printf '\nLicences of the libraries in /usr/lib/gpttrain: /usr/lib/gpttrain/licenses.\n'
} >"$deb/usr/share/doc/gpttrain/copyright"
cat >"$deb/DEBIAN/control" <<END
Package: gpttrain
Version: $version
Architecture: amd64
Maintainer: The gpttrain authors
Section: science
Priority: optional
Depends: libc6 (>= $glibc)
Suggests: openssh-client
Installed-Size: $(du -sk "$deb/usr" | cut -f1)
Description: trainer of Transformer language models
 Tensor, pipeline and ZeRO data parallelism on CPUs and NVIDIA GPUs, in one program.
 Libraries and Open MPI's launcher are included, in /usr/lib/gpttrain.
END
(cd "$deb" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$deb/DEBIAN/md5sums"
dpkg-deb --root-owner-group -Zxz -z2 --build "$deb" "$ready/gpttrain_${version}_amd64.deb" >/dev/null
mv "$ready"/* "$out"
(cd "$out" && ls -s --block-size=1MB gpttrain[-_]* | sed 's/$/ (first column: MB)/')
