#!/bin/sh
# Builds one program of this repository for its image: build-program.sh NAME FILE
set -eu
name=${1:-} file=${2:-program}

programs() {
    for main in plugins/*/src/main.rs crates/*/*/src/main.rs; do
        [ -e "$main" ] && basename "${main%/src/main.rs}"
    done
}

if [ -z "$name" ]; then
    echo "Which program? Say it with --build-arg PLUGIN=<name>. There are:" $(programs) >&2
    exit 1
fi
for folder in "plugins/$name" crates/*/"$name"; do
    if [ -e "$folder/src/main.rs" ]; then
        package=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$folder/Cargo.toml" | head -n 1)
        # The folder of what was built is a cache that the image does not hold.
        cargo build --release --locked --package "$package" --bin "$package"
        exec install -m 755 "target/release/$package" "$file"
    fi
done
echo "There is no program $name (PLUGIN). There are:" $(programs) >&2
exit 1
