-- @include failures
-- Let failures go: their entries, messages and dead letters. The jobs stay failed, and their records are kept as long as
-- results. KEYS: the queue's. ARGV: 1 queue, then entries of the failures of its model. Returns per entry 1, or 0 if it is of
-- another queue of the model, or was gone before.
return for_each_entry(function(entry)
  local id, _, removed = failed_job(entry)
  if not id then return removed end
  local failed_us = call('ZSCORE', failures, entry)
  forget_failure(id)
  call('ZREM', KEYS[10], id)
  call('UNLINK', keys.letters .. ARGV[1] .. ':' .. id)
  keep_as_result(id, failed_us, unpack(read(id, 'l')))
  return failed_us and 1 or 0
end)
