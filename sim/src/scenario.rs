//! Runs with a name: one for each bug that the simulator has found.
//!
//! Always true: a scenario that once failed stays in this list, with the rule that was broken.
//! Deliberately absent: chance; a scenario is a seed and what was changed in its plan.
