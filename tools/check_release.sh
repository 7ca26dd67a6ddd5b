#!/bin/sh
# Refuses a tag, such as v1.2.3, that is not the version's or has no date.
cd "$(dirname "$0")/.." || exit
version=${1#v}
grep -qxF "__version__ = \"$version\"" keras_lanton/version.py || {
  echo "$1 is not the version of keras_lanton/version.py"
  exit 1
}
date='[0-9]{4}-[0-9]{2}-[0-9]{2}'
grep -qE "^## \[$version\] - $date\$" CHANGELOG.md || {
  echo "CHANGELOG.md has no date for $1"
  exit 1
}
