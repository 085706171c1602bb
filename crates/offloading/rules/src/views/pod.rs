//! Fields of pods.

use serde_json::{Map, Value};

use crate::views::{ConditionView, MetadataView, NamedView, Views};

/// The field of a node affinity with the terms one of which a node must match.
pub(crate) const REQUIRED_TERMS: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// The field of a node affinity with the terms that a pod prefers.
pub(crate) const PREFERRED_TERMS: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A list of containers in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerList {
    Init,
    Main,
    Ephemeral,
}

impl ContainerList {
    pub const ALL: [Self; 3] = [Self::Init, Self::Main, Self::Ephemeral];
    /// Those with which a pod is created.
    pub const OF_NEW_POD: [Self; 2] = [Self::Init, Self::Main];

    /// Its field in the spec of a pod.
    pub const fn spec_field(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::Main => "containers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }

    /// The field with the statuses of its containers in the status of a pod.
    pub const fn status_field(self) -> &'static str {
        match self {
            Self::Init => "initContainerStatuses",
            Self::Main => "containerStatuses",
            Self::Ephemeral => "ephemeralContainerStatuses",
        }
    }

    /// Its containers in a pod, to change them.
    pub fn in_pod_mut(self, pod: &mut Value) -> Option<&mut Vec<Value>> {
        pod.get_mut("spec")?
            .get_mut(self.spec_field())?
            .as_array_mut()
    }

    /// The statuses of its containers in the status of a pod, to change them.
    pub fn in_status_mut(self, status: &mut Value) -> impl Iterator<Item = &mut Value> {
        let statuses = status.get_mut(self.status_field());
        statuses.and_then(Value::as_array_mut).into_iter().flatten()
    }
}

json_views! {
    /// A pod.
    PodView {
        metadata: MetadataView<'a> = "metadata",
        spec: PodSpecView<'a> = "spec",
        status: PodStatusView<'a> = "status",
    }

    /// The spec of a pod.
    PodSpecView {
        active_deadline_seconds: Option<&'a Value> = "activeDeadlineSeconds",
        affinity: AffinityView<'a> = "affinity",
        automount_service_account_token: Option<bool> = "automountServiceAccountToken",
        containers: Views<'a, ContainerView<'a>> = ContainerList::Main.spec_field(),
        dns_config: DnsConfigView<'a> = "dnsConfig",
        dns_policy: Option<&'a str> = "dnsPolicy",
        hostname: &'a str = "hostname",
        image_pull_secrets: Views<'a, NamedView<'a>> = "imagePullSecrets",
        node_name: Option<&'a str> = "nodeName",
        node_selector: Option<&'a Map<String, Value>> = "nodeSelector",
        readiness_gates: Views<'a, ReadinessGateView<'a>> = "readinessGates",
        resources: Option<&'a Value> = "resources",
        restart_policy: Option<&'a str> = "restartPolicy",
        scheduling_gates: Option<&'a [Value]> = "schedulingGates",
        service_account_name: &'a str = "serviceAccountName",
        set_hostname_as_fqdn: Option<bool> = "setHostnameAsFQDN",
        subdomain: &'a str = "subdomain",
        termination_grace_period_seconds: Option<i64> = "terminationGracePeriodSeconds",
        tolerations: Option<&'a [Value]> = "tolerations",
        topology_spread_constraints: &'a [Value] = "topologySpreadConstraints",
        volumes: Views<'a, VolumeView<'a>> = "volumes",
    }

    /// The `dnsConfig` of a pod.
    DnsConfigView {
        nameservers: &'a [Value] = "nameservers",
        searches: &'a [Value] = "searches",
        options: &'a [Value] = "options",
    }

    /// A readiness gate of a pod.
    ReadinessGateView {
        condition_type: Option<&'a str> = "conditionType",
    }

    /// The affinity of a pod.
    AffinityView {
        node_affinity: NodeAffinityView<'a> = "nodeAffinity",
    }

    /// The affinity of a pod to nodes.
    NodeAffinityView {
        required: Option<NodeSelectorView<'a>> = REQUIRED_TERMS,
        preferred: &'a [Value] = PREFERRED_TERMS,
    }

    /// Terms one of which a node must match.
    NodeSelectorView {
        node_selector_terms: &'a [Value] = "nodeSelectorTerms",
    }

    /// A term that a pod prefers.
    PreferredTermView {
        preference: TermView<'a> = "preference",
    }

    /// Requirements that a node must meet.
    TermView {
        match_expressions: &'a [Value] = "matchExpressions",
        match_fields: &'a [Value] = "matchFields",
    }

    /// A requirement about a label of a node.
    RequirementView {
        key: Option<&'a str> = "key",
        operator: Option<&'a str> = "operator",
        values: &'a [Value] = "values",
    }

    /// A toleration of a pod.
    TolerationView {
        key: &'a str = "key",
        operator: &'a str = "operator",
        value: &'a str = "value",
        effect: &'a str = "effect",
        toleration_seconds: Option<&'a Value> = "tolerationSeconds",
    }

    /// A container of a pod.
    ContainerView {
        name: &'a str = "name",
        image: Option<&'a Value> = "image",
        env: Views<'a, VariableView<'a>> = "env",
        env_from: &'a [Value] = "envFrom",
        ports: Views<'a, ContainerPortView<'a>> = "ports",
        resources: ResourcesView<'a> = "resources",
        restart_policy: Option<&'a str> = "restartPolicy",
        volume_mounts: Views<'a, VolumeMountView<'a>> = "volumeMounts",
        liveness_probe: HandlerView<'a> = "livenessProbe",
        readiness_probe: HandlerView<'a> = "readinessProbe",
        startup_probe: HandlerView<'a> = "startupProbe",
        lifecycle: LifecycleView<'a> = "lifecycle",
    }

    /// A variable of a container.
    VariableView {
        value_from: Option<ValueSourceView<'a>> = "valueFrom",
    }

    /// The source of a variable, or of a file of the downward API.
    ValueSourceView {
        field_ref: FieldReferenceView<'a> = "fieldRef",
    }

    /// A reference to a field of the pod.
    FieldReferenceView {
        field_path: Option<&'a str> = "fieldPath",
    }

    /// A port of a container.
    ContainerPortView {
        host_port: Option<&'a Value> = "hostPort",
    }

    /// The requests and limits of a container, or those in its status.
    ResourcesView {
        requests: Option<&'a Map<String, Value>> = "requests",
        limits: Option<&'a Map<String, Value>> = "limits",
        claims: &'a [Value] = "claims",
    }

    /// The capabilities that a container adds and drops.
    CapabilitiesView {
        add: &'a [Value] = "add",
        drop: &'a [Value] = "drop",
    }

    /// A mount of a volume in a container.
    VolumeMountView {
        name: Option<&'a Value> = "name",
        mount_path: Option<&'a Value> = "mountPath",
    }

    /// The hooks of a container.
    LifecycleView {
        post_start: HandlerView<'a> = "postStart",
        pre_stop: HandlerView<'a> = "preStop",
    }

    /// A probe or hook of a container.
    HandlerView {
        http_get: HandlerTargetView<'a> = "httpGet",
        tcp_socket: HandlerTargetView<'a> = "tcpSocket",
    }

    /// The target of a probe or hook.
    HandlerTargetView {
        host: &'a str = "host",
    }

    /// A volume of a pod.
    VolumeView {
        name: &'a str = "name",
        projected: ProjectedVolumeView<'a> = "projected",
        secret: SecretVolumeView<'a> = "secret",
        image: ImageVolumeView<'a> = "image",
        downward_api: DownwardFilesView<'a> = "downwardAPI",
    }

    /// A projected volume.
    ProjectedVolumeView {
        sources: Views<'a, ProjectionView<'a>> = "sources",
    }

    /// A source of a projected volume.
    ProjectionView {
        service_account_token: Option<TokenProjectionView<'a>> = "serviceAccountToken",
        config_map: NamedView<'a> = "configMap",
        downward_api: DownwardFilesView<'a> = "downwardAPI",
    }

    /// A token in a projected volume.
    TokenProjectionView {
        audience: &'a str = "audience",
        expiration_seconds: Option<i64> = "expirationSeconds",
    }

    /// Files with fields of the pod.
    DownwardFilesView {
        items: Views<'a, ValueSourceView<'a>> = "items",
    }

    /// A volume with a Secret.
    SecretVolumeView {
        secret_name: Option<&'a str> = "secretName",
    }

    /// A volume with an image.
    ImageVolumeView {
        reference: Option<&'a str> = "reference",
    }

    /// The status of a pod.
    PodStatusView {
        phase: Option<&'a str> = "phase",
        reason: Option<&'a str> = "reason",
        message: Option<&'a str> = "message",
        start_time: Option<&'a str> = "startTime",
        host_ip: &'a str = "hostIP",
        host_ips: Views<'a, AddressView<'a>> = "hostIPs",
        pod_ip: Option<&'a str> = "podIP",
        pod_ips: Views<'a, AddressView<'a>> = "podIPs",
        conditions: Views<'a, ConditionView<'a>> = "conditions",
    }

    /// An address of a pod or of its node.
    AddressView {
        ip: Option<&'a str> = "ip",
    }

    /// The status of a container.
    ContainerStatusView {
        name: &'a str = "name",
        container_id: Option<&'a str> = "containerID",
        ready: Option<bool> = "ready",
        started: Option<bool> = "started",
        restart_count: Option<i64> = "restartCount",
        resources: ResourcesView<'a> = "resources",
        state: ContainerStateView<'a> = "state",
        last_state: ContainerStateView<'a> = "lastState",
    }

    /// A state of a container: one of these.
    ContainerStateView {
        waiting: Option<WaitingStateView<'a>> = "waiting",
        running: Option<RunningStateView<'a>> = "running",
        terminated: Option<TerminatedStateView<'a>> = "terminated",
    }

    /// The state of a container that waits.
    WaitingStateView {
        reason: Option<&'a str> = "reason",
        message: Option<&'a str> = "message",
    }

    /// The state of a container that runs.
    RunningStateView {
        started_at: Option<&'a str> = "startedAt",
    }

    /// The state of a container that ended.
    TerminatedStateView {
        reason: Option<&'a str> = "reason",
        message: &'a str = "message",
        exit_code: Option<i64> = "exitCode",
        started_at: Option<&'a str> = "startedAt",
        finished_at: Option<&'a str> = "finishedAt",
    }

    /// The record of what travelled, in an annotation of a remote pod.
    TravelledView {
        labels: &'a [Value] = "labels",
        annotations: &'a [Value] = "annotations",
        images: Option<&'a Map<String, Value>> = "images",
    }

    /// An operation of a JSON patch.
    PatchView {
        path: Option<&'a str> = "path",
        value: Option<&'a Value> = "value",
    }
}

impl<'a> PodSpecView<'a> {
    /// The containers of a list.
    pub fn containers_in(self, list: ContainerList) -> Views<'a, ContainerView<'a>> {
        super::FieldType::read(self.json().get(list.spec_field()))
    }
}

impl<'a> PodStatusView<'a> {
    /// The statuses of the containers of a list.
    pub fn statuses_in(self, list: ContainerList) -> Views<'a, ContainerStatusView<'a>> {
        super::FieldType::read(self.json().get(list.status_field()))
    }

    /// The first condition of this type.
    pub fn condition(self, kind: &str) -> Option<ConditionView<'a>> {
        self.conditions().find(|one| one.kind() == Some(kind))
    }
}

impl<'a> AffinityView<'a> {
    /// The terms one of which a node must match.
    pub fn required_terms(self) -> &'a [Value] {
        let required = self.node_affinity().required();
        required.map_or(&[], NodeSelectorView::node_selector_terms)
    }
}

impl<'a> ContainerView<'a> {
    /// Name of its image.
    pub fn image_text(self) -> Option<&'a str> {
        self.image()?.as_str()
    }
}

impl<'a> TravelledView<'a> {
    /// The image of a container that travelled.
    pub fn image(self, container: &str) -> Option<&'a Value> {
        self.images()?.get(container)
    }
}

impl<'a> VariableView<'a> {
    /// The path of the field that it has the value of.
    pub fn field_path(self) -> Option<&'a str> {
        self.value_from()?.field_ref().field_path()
    }
}
