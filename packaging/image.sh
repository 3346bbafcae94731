#!/bin/sh
# Write the file system of the container image into a directory: Python, the libraries that it loads, Halfmoon and its dependencies.
# It has nothing else, and no shell. Run by the Dockerfile, and by tests/packaging/test_image.py on any Linux:
#
#   packaging/image.sh PYTHON WHEELS DIRECTORY
set -eu
python=$1 wheels=$2 root=$3
version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
library=$root/usr/local/lib/$version
site=$library/site-packages

mkdir -p "$root/usr/local/bin" "$site" "$root/etc" "$root/data" "$root/tmp" "$root/proc" "$root/dev"
chmod 755 "$root"
chmod 1777 "$root/tmp"
echo 'halfmoon:x:10001:10001:halfmoon:/data:/sbin/nologin' >"$root/etc/passwd"
echo 'halfmoon:x:10001:' >"$root/etc/group"
chown 10001:10001 "$root/data"
chmod 700 "$root/data"

# Python, without modules that a server never imports.
"$python" - "$library" "$root/usr/local/bin/python3" <<'END'
import shutil, sys, sysconfig
from pathlib import Path

never = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils", "pydoc_data",
    "config-*", "_test*", "_tkinter*", "xxlimited*", "__pycache__", "*.a",
)
shutil.copytree(sysconfig.get_path("stdlib"), sys.argv[1], ignore=never, dirs_exist_ok=True)
dynamic = Path(sysconfig.get_config_var("DESTSHARED"))  # beside the standard library, or somewhere else
shutil.copytree(dynamic, Path(sys.argv[1], "lib-dynload"), ignore=never, dirs_exist_ok=True)
shutil.copy2(Path(sys.executable).resolve(), sys.argv[2])
END

pip="$python -m pip --disable-pip-version-check --no-input install --quiet --root-user-action ignore --no-compile --target $site"
$pip --require-hashes -r constraints-base.txt
$pip --no-deps --upgrade "$wheels"/halfmoon*.whl
rm -rf "$site/bin"
printf '#!/usr/local/bin/python3\nimport sys\n\nfrom halfmoon.cli.main import main\n\nsys.exit(main())\n' >"$root/usr/local/bin/halfmoon"
chmod 755 "$root/usr/local/bin/halfmoon"
"$python" -m compileall -q -j 0 -s "$root" "$library"  # bytecode compiled later could not be stored: the user may not write here

# Shared libraries, from all their places, in one directory. The loader has its own path.
find "$root" -type f \( -name '*.so*' -o -name python3 \) -exec ldd {} + 2>/dev/null \
	| awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*\/ld-/ { print $1 }' | sort -u | while read -r file; do
	case $file in
	"$root"/*) ;;
	*/ld-*) mkdir -p "$root${file%/*}" && cp -L "$file" "$root$file" ;;
	*) cp -L "$file" "$root/usr/local/lib/" ;;
	esac
done
strip --strip-unneeded "$root"/usr/local/lib/*.so* "$library"/lib-dynload/*.so "$root/usr/local/bin/python3"
echo /usr/local/lib >"$root/etc/ld.so.conf"
ldconfig -r "$root"
