//! The compiled .proto files are current.

use std::{fs, path::Path};

use liqo_resource_plugin::Generation;
use protox::prost::Message as _;

#[test]
fn the_compiled_proto_files_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    for (generation, name) in [
        (Generation::P1, "p1"),
        (Generation::P2, "p2"),
        (Generation::P3, "p3"),
    ] {
        let mut compiler = protox::Compiler::new([&folder]).unwrap();
        let descriptors = compiler
            .include_imports(true)
            .open_file(format!("{name}.proto"))
            .unwrap()
            .file_descriptor_set();
        let bytes = descriptors.encode_to_vec();
        if std::env::var_os("LIQO_WRITE_DESCRIPTORS").is_some() {
            fs::write(folder.join(name).with_extension("bin"), &bytes).unwrap();
            continue;
        }
        let hint = "run `LIQO_WRITE_DESCRIPTORS=1 cargo test -p liqo-resource-plugin --test descriptors` and commit the result";
        assert!(
            generation.descriptors() == bytes,
            "proto/{name}.bin is not current: {hint}"
        );
    }
}
