//! How a long operation reports to its caller.

/// Receives the steps of a long operation. The library itself prints nothing.
pub trait Progress: Send + Sync {
    /// A step begins. Steps may overlap; each name stands for one step.
    fn started(&self, step: &str);
    /// A step ended well.
    fn finished(&self, step: &str);
    /// News about a running step.
    fn message(&self, step: &str, text: &str);
    /// A line that belongs to no step.
    fn line(&self, text: &str);
}

/// Ignores everything.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn started(&self, _step: &str) {}
    fn finished(&self, _step: &str) {}
    fn message(&self, _step: &str, _text: &str) {}
    fn line(&self, _text: &str) {}
}
