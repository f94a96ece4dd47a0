#!/usr/bin/env bash
# rename.sh copies this example to a new folder and renames it: the Go module, the kind and
# the API group. The copy is a repository of its own.
#
#	examples/website/rename.sh FOLDER MODULE KIND GROUP
#	examples/website/rename.sh ~/shop example.com/shop Shop shop.example.com
#
# The plural of the kind is its name with an s. The copy requires the newest release of
# controllerkit. If CONTROLLERKIT is set to the folder of a checkout, it uses that instead.
set -euo pipefail

if [ $# -ne 4 ]; then
	echo "usage: $0 FOLDER MODULE KIND GROUP, for example $0 ~/shop example.com/shop Shop shop.example.com" >&2
	exit 2
fi
folder=$1 module=$2 kind=$3 group=$4
fail() {
	echo "rename.sh: $1" >&2
	exit 1
}
[[ $kind =~ ^[A-Z][A-Za-z0-9]*$ ]] || fail "KIND $kind is not valid: use a name in CamelCase, such as Shop"
[[ $group =~ ^[a-z0-9-]+(\.[a-z0-9-]+)+$ ]] || fail "GROUP $group is not valid: use a DNS name, such as shop.example.com"
[[ $module =~ ^[A-Za-z0-9._~/-]+$ ]] || fail "MODULE $module is not valid: use a module path, such as example.com/shop"
[ ! -e "$folder" ] || fail "$folder exists: use a new folder"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
lower=${kind,,}
mkdir -p "$folder"
cp -R "$here/." "$folder"
cd "$folder"
# The tests of the controllerkit repository need its API server; those of the copy find
# one in the PATH.
rm -rf integration rename.sh controller/server_test.go
sed -i -e '/^# In this repository:/d' -e 's/^# In a repository of its own: /# /' Dockerfile
grep -rlZ . . | xargs -0 sed -i \
	-e "s|github.com/controllerkit/controllerkit/examples/website|$module|g" \
	-e "s|web\.example\.com|$group|g" \
	-e "s|Website|$kind|g" \
	-e "s|website|$lower|g"
mv config/website.yaml "config/$lower.yaml" 2>/dev/null || true # the same if the kind is Website
printf '/%s-operator\n' "$lower" >.gitignore

go mod init "$module" 2>/dev/null
if [ -n "${CONTROLLERKIT:-}" ]; then
	go mod edit -require github.com/controllerkit/controllerkit@v0.0.0 -replace "github.com/controllerkit/controllerkit=$CONTROLLERKIT"
	cp "$CONTROLLERKIT/go.sum" .
else
	go get github.com/controllerkit/controllerkit@latest
fi
go mod tidy
gofmt -w .
go vet ./...
git init -q
echo "$folder is ready: go test ./...; then change api/v1/types.go and controller/controller.go"
