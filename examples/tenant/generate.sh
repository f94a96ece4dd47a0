#!/usr/bin/env bash
# Generates api/v1alpha1/zz_generated.deepcopy.go and client/ from
# api/v1alpha1/types.go. With -verify it writes no file: it compares the generated
# code with the existing files and exits with code 1 if they differ.
#
# internal/tools/go.mod pins the generators. They run on a copy of the types in a
# temporary module of the same name, so that the result depends only on the types
# and not on an old or broken generated file.
set -euo pipefail

case "${1-}" in
'') verify=false ;;
-verify) verify=true ;;
*)
	echo "usage: $0 [-verify]" >&2
	exit 2
	;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

go build -C "$root/internal/tools" -o "$tmp/bin/" \
	k8s.io/code-generator/cmd/{deepcopy,applyconfiguration,client,lister,informer}-gen

pkg=$(cd "$root" && go list -m)/examples/tenant
work=$tmp/module/examples/tenant
mkdir -p "$work/api/v1alpha1"
cp "$root/go.mod" "$root/go.sum" "$tmp/module/"
cp "$here"/api/v1alpha1/{doc,register,types}.go "$work/api/v1alpha1/"
cd "$tmp/module"

gen() {
	local name=$1
	shift
	"$tmp/bin/$name-gen" --go-header-file /dev/null "$@"
}

api=$pkg/api/v1alpha1
gen deepcopy --output-file zz_generated.deepcopy.go "$api"
gen applyconfiguration \
	--output-dir "$work/client/applyconfiguration" --output-pkg "$pkg/client/applyconfiguration" "$api"
gen client --input-base "$pkg" --input api/v1alpha1 --clientset-name versioned \
	--apply-configuration-package "$pkg/client/applyconfiguration" \
	--output-dir "$work/client/clientset" --output-pkg "$pkg/client/clientset"
gen lister --output-dir "$work/client/listers" --output-pkg "$pkg/client/listers" "$api"
gen informer \
	--versioned-clientset-package "$pkg/client/clientset/versioned" --listers-package "$pkg/client/listers" \
	--output-dir "$work/client/informers" --output-pkg "$pkg/client/informers" "$api"

# informer-gen fills two fields of cache.ListWatch that are deprecated.
cat >"$work/client/staticcheck.conf" <<-'EOF'
	# Written by ../generate.sh. Only the generators can remove the deprecated fields.
	checks = ["inherit", "-SA1019"]
EOF

deepcopy=api/v1alpha1/zz_generated.deepcopy.go
if $verify; then
	status=0
	diff -u "$here/$deepcopy" "$work/$deepcopy" || status=1
	diff -ruN "$here/client" "$work/client" || status=1
	if [ $status -ne 0 ]; then
		echo "the generated code of examples/tenant is out of date: run examples/tenant/generate.sh" >&2
	fi
	exit $status
fi
cp "$work/$deepcopy" "$here/$deepcopy"
rm -rf "$here/client"
cp -R "$work/client" "$here/client"
