//! Compiles the interface of the Container Storage Interface, and that between the driver and the volume server.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/csi.proto", "proto/volume_server.proto"];
    files.iter().for_each(|file| println!("cargo::rerun-if-changed={file}"));
    let descriptors = protox::compile(files, ["proto"])?;
    // Requests that a driver need not know are answered with `Unimplemented`.
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}
