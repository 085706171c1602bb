/// Whether a pod in this phase has ended for good: its containers never run again.
pub fn is_final_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
