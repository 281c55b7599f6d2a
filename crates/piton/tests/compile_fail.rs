//! Mistakes that must not compile, each with what the compiler says about it.

#[test]
fn mistakes_that_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
