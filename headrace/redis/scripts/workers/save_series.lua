-- Save a minute of models' time series. For a background worker that has compared with an older head nothing is written:
-- another one has written meanwhile. KEYS: none. ARGV: 1 how long a series is, then per model: name, '1' if it is in the
-- registry, the head that the new one was made from ('' for a new series), the new head, then twice where a record begins
-- and the record. Returns how many models were written.
local written = 0
for i = 2, #ARGV, 8 do
  local key, before, head = keys.series .. ARGV[i], ARGV[i + 2], ARGV[i + 3]
  local present = ARGV[i + 1] ~= '1' or try('HEXISTS', keys.MODELS, ARGV[i]) == 1
  if present and try('GETRANGE', key, 0, #head - 1) == before then
    -- A string that grew later would have as much room to spare.
    if before == '' then call('SETRANGE', key, ARGV[1] - 1, '\0') end
    call('SETRANGE', key, 0, head)
    call('SETRANGE', key, ARGV[i + 4], ARGV[i + 5])
    call('SETRANGE', key, ARGV[i + 6], ARGV[i + 7])
    call('EXPIRE', key, keys.SERIES_TTL_S)
    written = written + 1
  end
end
return written
