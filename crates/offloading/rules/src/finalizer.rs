//! Finds one finalizer in the list of an object.

/// Position of this finalizer in an object's list.
pub fn position(finalizers: Option<&Vec<String>>, ours: &str) -> Option<usize> {
    finalizers?.iter().position(|name| name == ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_hold_an_object_has_no_place_in_its_list() {
        assert_eq!(position(None, "ours"), None);
        assert_eq!(position(Some(&vec!["other".to_owned()]), "ours"), None);
    }
}
