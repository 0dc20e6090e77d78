# SPDX-License-Identifier: Apache-2.0
"""`grademl export`: what was read, in the forms that other tools take; docs/exports.md tells of them."""
