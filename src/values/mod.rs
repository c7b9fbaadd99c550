//! What an impression is worth: the value model, which corrects the logged predictions, and days at its values.
//!
//! The logged predictions err by ad, slot and audience. The exposures say what was really charged and clicked. The model learns two
//! factors from them, on the expected charge of an auction ad and on the odds of a click; a model that has learned nothing leaves
//! both at 1, and the logged prediction stays as it is.
//!
//! | file | what it is |
//! |---|---|
//! | [`fields`] | which ids an impression has, hashed to 64 bits |
//! | [`sample`] | dense features, ids and outcome of an exposure; blocks of them |
//! | [`join`] | exposures joined to their requests, with what does not join counted |
//! | [`linear`] | products of small matrices |
//! | [`net`], [`adam`] | the network, forward and backward; its optimiser |
//! | [`model`] | the model with its rows, and its file |
//! | [`prior`] | how far the ids of each field err, estimated from the exposures |
//! | [`ratios`] | the simplest model: a ratio for each ad |
//! | [`report`] | how well values predict outcomes, beside simpler corrections |
//! | [`told`] | days at the values that are told |
//! | [`store`] | models beside the policies that were made at their values |

pub mod adam;
pub mod fields;
pub mod join;
pub mod linear;
pub mod model;
pub mod net;
pub mod prior;
mod products;
pub mod ratios;
pub mod report;
pub mod sample;
pub mod store;
pub mod told;

pub use fields::Fields;
pub use model::ValueModel;
pub use sample::{Block, Sample};
pub use told::{Table, Told};
