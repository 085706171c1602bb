use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// With whom this cluster shares, and how much. The one named `default` holds for everybody.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "PeeringPolicy",
    plural = "peeringpolicies",
    shortname = "pp",
    category = "liqo",
    doc = "With whom this cluster shares, and how much",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'default'").message("the only PeeringPolicy is named default"),
    printcolumn(name = "Percentage", type_ = "integer", json_path = ".spec.provide.percentage"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PeeringPolicySpec {
    /// What is provided.
    #[serde(default)]
    pub provide: Provide,
}

/// What is provided.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Provide {
    /// Share of the free local resources that is offered to all consumers together, in percent.
    #[schemars(range(max = 100))]
    pub percentage: u8,
}

impl Default for Provide {
    fn default() -> Self {
        Self { percentage: 90 }
    }
}
