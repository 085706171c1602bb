//! A plugin that offers each peer one GPU, with the CPU, memory and pods to use it.

use std::process::ExitCode;

use liqo_resource_plugin::{
    Options, Pool, ResourceSource, SourceError, arguments::resources, async_trait, serve,
};

struct OneGpuForEach;

#[async_trait]
impl ResourceSource for OneGpuForEach {
    async fn read(&self, _cluster: &str) -> Result<Vec<Pool>, SourceError> {
        let amounts = resources(["cpu=4", "memory=16Gi", "pods=20", "nvidia.com/gpu=1"]);
        Ok(vec![amounts.map_err(SourceError::failed)?.into()])
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    serve(OneGpuForEach, Options::parse()).await
}
