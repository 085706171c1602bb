//! Marks what a peer wrote and this cluster has not verified yet.

/// A value that was read from an object that a peer writes.
///
/// Two owners who do not trust each other share objects. Whatever enters a signature, a charge, a
/// stored copy or a decision to delete evidence comes from this cluster's own records, or from
/// bytes that this cluster verified against its own keys and its own contract. So what a peer wrote
/// has this type from the place where its object is read to the function that verifies it. The same
/// struct is plain where it is this cluster's own record.
///
/// Three methods tell what is inside: [`unverified`](Self::unverified),
/// [`into_unverified`](Self::into_unverified) and [`says`](Self::says). A test compares the
/// functions that call them with `docs/reference/trusted-fields.md`, which says what follows from each claim,
/// and what these functions rely on instead of believing it. There is no `Deref`, no `Display`, no
/// serialization and no order. Two claims can be compared, so that caches notice changes, and
/// `{:?}` prints a claim.
///
/// ```compile_fail,E0609
/// let end = liqo_api::Claimed::new((10, "requested"));
/// println!("{}", end.1); // A field cannot be read.
/// ```
///
/// ```compile_fail,E0616
/// let end = liqo_api::Claimed::new((10, "requested"));
/// println!("{}", end.0.1); // The value inside is private.
/// ```
///
/// ```compile_fail,E0308
/// let end = liqo_api::Claimed::new(10);
/// let seen = std::cell::Cell::new(0);
/// end.map(|end| seen.set(end)); // This function captures a variable.
/// ```
///
/// ```
/// let end = liqo_api::Claimed::new((10, "requested"));
/// assert_eq!(*end.map(|end| end.0).unverified(), 10);
/// assert!(end.says(&(10, "requested")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimed<T>(T);

impl<T> Claimed<T> {
    /// Marks what was read from an object that a peer writes. A cluster can also pass its own
    /// record to a function that verifies.
    pub const fn new(said: T) -> Self {
        Self(said)
    }

    /// The same claim, borrowed.
    pub const fn by_ref(&self) -> Claimed<&T> {
        Claimed(&self.0)
    }

    /// Applies a function to the claim. The result is no more certain. The function captures no
    /// variables, so it depends on nothing else.
    pub fn map<P>(self, map: fn(T) -> P) -> Claimed<P> {
        Claimed(map(self.0))
    }

    /// Whether the peer says exactly what this cluster says itself.
    pub fn says(&self, own: &T) -> bool
    where
        T: PartialEq,
    {
        self.0 == *own
    }

    /// Opens the claim. Whoever calls this verifies what it says, or lets nothing follow from it
    /// but what `docs/reference/trusted-fields.md` says.
    pub const fn unverified(&self) -> &T {
        &self.0
    }

    /// Opens the claim, like [`unverified`](Self::unverified), and gives away what is inside.
    pub fn into_unverified(self) -> T {
        self.0
    }
}
