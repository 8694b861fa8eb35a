-- @include queues
-- Read the state of watched jobs. KEYS: none. ARGV: ids.
-- Returns per id {state, attempts, token, started, ended, place in the queue or 0 (for a scheduled job when it is due, in
-- us), progress, stages, the error of the last try if it is scheduled, created}, or 0 if it is unknown.
local answer = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  local state, attempts, token, started, ended, model, step, ticket, progress, stages, error, created,
    version = unpack(read(id, 's', 'a', 't', 'st', 'en', 'm', 'p', 'n', 'pg', 'sg', 'e', 'c', 'pv'))
  if not state then
    answer[i] = 0
  else
    local place = 0
    if state == 'q' and ticket and model then
      place = place_of(queue_of(model, version), step, ticket)
    elseif state == 'd' and model then
      place = due_of(queue_of(model, version), id)
    end
    local runs = state == 'r' and started
    answer[i] = {state, attempts or '', token or '', started or '', ended or '', place, runs and progress or '',
      runs and stages or '', state == 'd' and error or '', created or ''}
  end
end
return answer
