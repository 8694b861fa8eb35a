// The types of the package, for `make lint`; browsers do not read this file.
export { default } from 'uplot';
