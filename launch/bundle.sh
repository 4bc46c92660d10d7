#!/usr/bin/env bash
# Builds the portable bundle: program, CUDA backend if built, every library that is not part of the base system, Open
# MPI's launcher with its plugins, configs, licences. All paths inside are relative, so the folder runs wherever it is
# unpacked. Called by launch/packages.sh and CMake's install; needs Debian's dpkg, patchelf, binutils, ldd.
#   cmake --build --preset cpu --target packages             as an archive, a wheel and a Debian package
#   cmake --install build/cpu --prefix NEW/FOLDER            as a folder
# Contents: bin/ (gpttrain, libgpttrain_cuda.so, mpirun, orted), lib/, etc/, share/ (runtime data of Open MPI and PMIx),
# configs/, launch/demo.sh, licenses/, share/gpttrain/bundle.txt with the minimum glibc.
# Not included: cuBLASLt (541 MB; from a CUDA 13 toolkit in /usr/local/cuda or LD_LIBRARY_PATH), cuDNN (same paths,
# optional), the driver, ssh, and libraries of fast networks: ranks communicate over shared memory and TCP. All machines
# of a job need the bundle at the same path. launch/ranks/start/bundle.h is the program's side.
#   launch/bundle.sh PROGRAM BACKEND SOURCE FOLDER [CUDNN_FRONTEND]     BACKEND may be missing
set -euo pipefail
program=$1 backend=$2 source=$3 folder=$4 frontend=${5:-}
fail() { echo "bundle: $*" >&2; exit 1; }
for tool in dpkg-query patchelf ldd objdump ompi_info mpirun orted; do
  command -v "$tool" >/dev/null || fail "needs $tool (launch/setup.sh installs it)"
done

# Libraries of the base system (any x86-64 Linux with this glibc), and those of the kernel, the driver or CUDA.
system='^(linux-vdso|ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnsl)\.so'
cuda='^(libcuda|libcublas|libcublasLt|libcudart|libcudnn.*|libnvrtc.*|libnccl)\.so'

# A bundle needs a folder of its own; never install into /usr/local.
[ -e "$folder/share/gpttrain/bundle.txt" ] || [ -z "$(ls -A "$folder" 2>/dev/null)" ] ||
  fail "$folder is neither empty nor a bundle; install with: cmake --install BUILD --prefix SOME/NEW/FOLDER"
rm -rf "$folder"/{bin,lib,etc,share,configs,launch,licenses,README.md}
mkdir -p "$folder"/{bin,lib,launch,share/gpttrain,licenses}
folder=$(realpath "$folder")
origin=$(mktemp)  # of every file that is not ours: where it came from, for its licence
trap 'rm -f "$origin"' EXIT

take() {  # FILE DIRECTORY: a copy, under its own name
  mkdir -p "$2"
  cp -L "$1" "$2/$(basename "$1")"
  chmod u+w "$2/$(basename "$1")"
  realpath "$1" >>"$origin"
}

cp "$program" "$folder/bin/gpttrain"
[ ! -e "$backend" ] || cp "$backend" "$folder/bin/libgpttrain_cuda.so"
cp -r "$source/configs" "$source/README.md" "$folder/"
cp "$source/launch/demo.sh" "$folder/launch/"

# Open MPI finds plugins and texts relative to its prefix, so they keep their relative paths. Excluded: transports of
# fast networks (their libraries belong to the machine), OpenSHMEM, MPI-IO, launchers of other systems.
prefix=$(ompi_info --path prefix --parsable | cut -d: -f3-)
plugins=$(ompi_info --path pkglibdir --parsable | cut -d: -f3-)
texts=$(ompi_info --path pkgdatadir --parsable | cut -d: -f3-)
settings=$(ompi_info --path sysconfdir --parsable | cut -d: -f3-)
case $plugins$texts in "$prefix"/*"$prefix"/*) ;; *) fail "Open MPI's $plugins and $texts are not below $prefix" ;; esac
here_plugins=$folder${plugins#"$prefix"}
take "$(command -v mpirun)" "$folder/bin"
take "$(command -v orted)" "$folder/bin"
for plugin in "$plugins"/mca_*.so; do
  [[ $(basename "$plugin") =~ ucx|ofi|psm|openib|memheap|scoll|spml|sshmem|atomic|flux|jsm|gridengine|monitoring|_io_|fcoll|fbtl|_fs_|sharedfp|mtl|pml_cm ]] ||
    take "$plugin" "$here_plugins"
done
mkdir -p "$folder${texts#"$prefix"}" "$folder/etc/openmpi"
cp -r "$texts"/. "$folder${texts#"$prefix"}/"
cp "$settings"/*.conf "$folder/etc/openmpi/"
pmix=$(realpath "$(ldd "$plugins"/mca_pmix_ext3x.so | awk '/libpmix/ {print $3}')")
for plugin in "$(dirname "$pmix")"/pmix/*.so; do take "$plugin" "$folder/lib/pmix2/lib/pmix"; done
mkdir -p "$folder/lib/pmix2/share"
cp -r "$(dirname "$pmix")"/../share/pmix "$folder/lib/pmix2/share/"

elfs() { find "$folder" -type f \( -path "$folder/bin/*" -o -name '*.so*' \); }

# ldd resolves libraries transitively; each is stored under its soname.
elfs | while read -r file; do ldd "$file"; done | awk '$2 == "=>" {print $1, $3}' | sort -u |
  while read -r name path; do
    [[ $name =~ $system || $name =~ $cuda ]] && continue
    [ "$path" != not ] || fail "$name is asked for and not found on this machine"
    [ -e "$folder/lib/$name" ] && continue
    cp -L "$path" "$folder/lib/$name"
    chmod u+w "$folder/lib/$name"
    realpath "$path" >>"$origin"
  done

# RPATH, not RUNPATH: another MPI or HDF5 in LD_LIBRARY_PATH, as set by cluster modules, must not override ours. The
# backend has a RUNPATH, because cuBLASLt comes from the machine.
elfs | while read -r file; do
  to_lib=$(realpath --relative-to="$(dirname "$file")" "$folder/lib")
  here="\$ORIGIN$([ "$to_lib" = . ] || echo "/$to_lib")"
  if [ "$(basename "$file")" = libgpttrain_cuda.so ]; then
    patchelf --set-rpath "$here:\$ORIGIN:/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib" "$file"
  else
    patchelf --force-rpath --set-rpath "$here" "$file"
  fi
done

# Licences of the packages, and the common licences that they refer to.
sort -u "$origin" | while read -r file; do
  dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null || fail "no package owns $file"
done | cut -d: -f1 | sort -u >"$folder/licenses/packages"
while read -r package; do
  cp -L "/usr/share/doc/$package/copyright" "$folder/licenses/$package.txt" || fail "no licence of $package"
done <"$folder/licenses/packages"
grep -hoE '/usr/share/common-licenses/[A-Za-z]+(-[0-9]+(\.[0-9]+)*)?' "$folder"/licenses/*.txt | sort -u |
  while read -r text; do [ ! -f "$text" ] || cp -L "$text" "$folder/licenses/"; done

# A backend with cuDNN support contains code from the cudnn-frontend headers.
knows_cudnn=no
if [ -e "$backend" ] && grep -q cudnnBackendExecute "$backend"; then
  knows_cudnn=yes
  cp "$frontend/LICENSE.txt" "$folder/licenses/cudnn-frontend.txt" || fail "no licence of cudnn-frontend in '$frontend'"
fi

# Marker file by which the program recognizes a bundle.
glibc=$(elfs | while read -r file; do objdump -T "$file"; done | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)
{
  echo "gpttrain, portable bundle for Linux on x86-64"
  echo "glibc: ${glibc#GLIBC_} or later"
  [ ! -e "$backend" ] || echo "GPUs: an NVIDIA driver and $(ldd "$backend" | awk '/libcublasLt/ {print $1}')"
  [ $knows_cudnn = no ] || echo "GPUs, for the faster attention: libcudnn.so.9"
  echo "licences of what is bundled: licenses/"
  while read -r package; do dpkg-query -W -f='${Package} ${Version}\n' "$package"; done <"$folder/licenses/packages" | sort -u
} >"$folder/share/gpttrain/bundle.txt"
rm "$folder/licenses/packages"
