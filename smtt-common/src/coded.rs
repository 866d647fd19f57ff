//! Coded values: integers with names, whose unknown values stay ordinary values.

/// Declares a transparent wrapper of an integer with named constants, `ALL`, `name` and `from_name`.
macro_rules! coded {
    ($(#[$doc:meta])* $type:ident : $raw:ty { $($(#[$vdoc:meta])* $konst:ident = $value:literal $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $type(pub $raw);

        impl $type {
            $($(#[$vdoc])* pub const $konst: Self = Self($value);)+

            /// Every known value, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$konst),+];

            /// The name used in every output, or `None` for a value this version does not know.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)+
                    _ => None,
                }
            }

            /// The value with that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == Some(name))
            }
        }
    };
}
