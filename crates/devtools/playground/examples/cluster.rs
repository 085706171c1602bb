//! Clusters by hand: `cluster up INSTANCE CLUSTER[:NODES[:FAKE_NODES]]...`,
//! `cluster status INSTANCE`, `cluster load INSTANCE CLUSTER REFERENCE PROGRAM`,
//! `cluster restart INSTANCE CLUSTER COMPONENT`,
//! `cluster stop-node|start-node INSTANCE CLUSTER NODE`,
//! `cluster scale INSTANCE CLUSTER FAKE_NODES`, `cluster down INSTANCE`.

use std::error::Error;

use liqo_playground::{ClusterSpec, ImageSpec, Playground, Progress, Supervision};

struct Printed(std::time::Instant);

impl Progress for Printed {
    fn started(&self, step: &str) {
        println!("{:6.1}s {step} ...", self.0.elapsed().as_secs_f32());
    }

    fn finished(&self, step: &str) {
        println!("{:6.1}s {step} done", self.0.elapsed().as_secs_f32());
    }

    fn message(&self, step: &str, text: &str) {
        println!("{:6.1}s {step}: {text}", self.0.elapsed().as_secs_f32());
    }

    fn line(&self, text: &str) {
        println!("{:6.1}s {text}", self.0.elapsed().as_secs_f32());
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(instance) = liqo_playground::supervised_instance() {
        return Ok(liqo_playground::run_supervisor(&instance)?);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let open = |instance: &str| -> Result<Playground, Box<dyn Error>> {
        Ok(Playground::open(instance)?
            .supervised_by(Supervision::Detached(std::env::current_exe()?)))
    };
    match arguments.as_slice() {
        ["up", instance, clusters @ ..] => {
            let spec = |text: &&str| {
                let mut parts = text.split(':');
                let name = parts.next().unwrap_or_default();
                let (nodes, fake_nodes) =
                    (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
                let spec = ClusterSpec {
                    nodes: nodes.parse()?,
                    ..ClusterSpec::new(name)
                };
                Ok::<_, std::num::ParseIntError>(spec.with_fake_nodes(fake_nodes.parse()?))
            };
            let specs = clusters.iter().map(spec).collect::<Result<Vec<_>, _>>()?;
            for cluster in open(instance)?
                .up(&specs, &Printed(std::time::Instant::now()))
                .await?
            {
                println!("export KUBECONFIG={}", cluster.kubeconfig().display());
            }
        }
        ["down", instance] => open(instance)?.down().await?,
        ["status", instance] => println!(
            "{}",
            serde_json::to_string_pretty(&open(instance)?.status().await?)?
        ),
        ["load", instance, cluster, reference, program] => {
            open(instance)?
                .cluster(cluster)?
                .load_image(&ImageSpec::new(*reference, *program))
                .await?;
        }
        ["restart", instance, cluster, component] => {
            let cluster = open(instance)?.cluster(cluster)?;
            cluster.stop(component).await?;
            cluster.start(component).await?;
        }
        ["stop-node", instance, cluster, node] => {
            open(instance)?.cluster(cluster)?.stop_node(node).await?;
        }
        ["start-node", instance, cluster, node] => {
            open(instance)?.cluster(cluster)?.start_node(node).await?;
        }
        ["scale", instance, cluster, fake_nodes] => {
            open(instance)?
                .cluster(cluster)?
                .scale_fake_nodes(fake_nodes.parse()?)
                .await?;
        }
        _ => return Err("see the commands at the top of this example".into()),
    }
    Ok(())
}
