{{- /* A release may have dots in its name, and a Service may not. */ -}}
{{- define "headrace.fullname" -}}
{{- $name := .Release.Name | replace "." "-" }}
{{- contains "headrace" $name | ternary $name (printf "%s-headrace" $name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
{{- /* A tag may have a digest, and be longer than a label. */}}
app.kubernetes.io/version: {{ regexReplaceAll "[^A-Za-z0-9_.-]+" (include "headrace.tag" .root) "_" | trunc 63 | trimAll "_.-" | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: headrace
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* The metadata of an object: dict root, component, name (a suffix). */ -}}
{{- define "headrace.metadata" -}}
name: {{ include "headrace.fullname" .root }}{{ with .name }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "headrace.labels" . | nindent 2 }}
{{- end }}

{{- /* A tag of digits alone is a number, and a large number would be 4.2e+07. */ -}}
{{- define "headrace.tag" -}}
{{- $tag := .Values.image.tag -}}
{{- if or (kindIs "float64" $tag) (kindIs "int64" $tag) }}{{ int64 $tag }}{{ else }}{{ $tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- /* A name with a tag or a digest stays as it is. */ -}}
{{- define "headrace.image" -}}
{{- $image := .root.Values.image -}}
{{- if or (contains ":" .image) (contains "@" .image) }}{{ .image }}
{{- else }}{{ with $image.registry }}{{ . }}/{{ end }}{{ .image }}:{{ include "headrace.tag" .root }}{{ end -}}
{{- end }}

{{- define "headrace.url" -}}
http://{{ include "headrace.fullname" . }}-api.{{ .Release.Namespace }}.svc:{{ .Values.api.service.port }}
{{- end }}

{{- /* The name of the first key of `keys` that may submit and read; "" if none may. */ -}}
{{- define "headrace.clientKey" -}}
{{- $found := "" }}
{{- range .Values.keys }}{{ if and (not $found) (has "submit" .scopes) (has "read" .scopes) }}{{ $found = .name }}{{ end }}{{ end }}
{{- $found }}
{{- end }}

{{- /* The key for KEDA and Prometheus, as a reference. `secretKey` is that of a Secret of the operator. */ -}}
{{- define "headrace.metricsKey" -}}
{{- $given := .Values.keda.existingSecret -}}
name: {{ $given | default (printf "%s-key-metrics" (include "headrace.fullname" .)) }}, key: {{ ternary .Values.keda.secretKey "key" (ne $given "") }}
{{- end }}

{{- /* A size of Redis or of Kubernetes in bytes; -1 if its unit is a rare one. */ -}}
{{- define "headrace.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "kb" 1024 "mb" 1048576 "gb" 1073741824 "ki" 1024 "mi" 1048576 "gi" 1073741824 "ti" 1099511627776 }}
{{- $unit := regexReplaceAll "^[0-9.]+" (toString .) "" | lower }}
{{- if not (kindIs "string" .) }}{{ int64 . }}
{{- else if hasKey $units $unit }}{{ mulf (regexFind "^[0-9.]+" . | float64) (get $units $unit) | int64 }}
{{- else }}-1{{ end }}
{{- end }}

{{- /* The models that pools list, as a JSON list. */ -}}
{{- define "headrace.listed" -}}
{{- $listed := list }}
{{- range .Values.workers }}{{ $listed = concat $listed (ternary .models $.Values.workerDefaults.models (hasKey . "models")) }}{{ end }}
{{- toJson $listed }}
{{- end }}

{{- /* The models file. Where pools list models, each model needs workers with its label. */ -}}
{{- define "headrace.models" -}}
{{- $models := dict }}
{{- $listed := include "headrace.listed" . | fromJsonArray }}
{{- range $name, $model := .Values.models }}
{{- $labels := append ($model.labels | default list) (printf "model=%s" $name) }}
{{- $_ := set $models $name (ternary (merge (dict "labels" $labels) $model) $model (gt (len $listed) 0)) }}
{{- end }}
{{- toYaml (dict "models" $models) }}
{{- with .Values.pipelines }}
{{ toYaml (dict "pipelines" .) }}
{{- end }}
{{- end }}

{{- /* The values of a pool: what it gives replaces what workerDefaults has; pdb and keda key by key. Empty values count. */ -}}
{{- define "headrace.pool" -}}
{{- $pool := deepCopy .root.Values.workerDefaults }}
{{- range $key, $value := .given }}
{{- if has $key (list "pdb" "keda") }}
{{- range $inner, $of := $value }}{{ $_ := set (get $pool $key) $inner $of }}{{ end }}
{{- else }}
{{- $_ := set $pool $key $value }}
{{- end }}
{{- end }}
{{- toYaml $pool }}
{{- end }}

{{- /* The models of a pool as a JSON list: its own, or those that no pool lists. */ -}}
{{- define "headrace.pool.models" -}}
{{- if .pool.models }}{{ toJson .pool.models }}
{{- else }}
{{- $listed := include "headrace.listed" .root | fromJsonArray }}
{{- $names := list }}
{{- range $name, $_ := .root.Values.models }}{{ if not (has $name $listed) }}{{ $names = append $names $name }}{{ end }}{{ end }}
{{- toJson $names }}
{{- end }}
{{- end }}

{{- /* How long the jobs of a pool may run, in whole seconds. */ -}}
{{- define "headrace.pool.drain" -}}
{{- $default := .root.Values.settings.timeout_s | default 60 }}
{{- $longest := 0.0 }}
{{- range $name := include "headrace.pool.models" . | fromJsonArray }}
{{- $longest = maxf $longest ((get $.root.Values.models $name).timeout_s | default $default) }}
{{- end }}
{{- if kindIs "invalid" .pool.drainSeconds }}{{ $longest | default $default | ceil | int }}
{{- else }}{{ .pool.drainSeconds | int }}{{ end }}
{{- end }}

{{- /* Secrets as variables or as one volume of files: dict root, secrets (variable, secret, key). */ -}}
{{- define "headrace.secrets" -}}
{{- $v := .root.Values }}
{{- $found := list }}
{{- if and (has "redis" .secrets) $v.redis.existingSecret }}
{{- $found = append $found (dict "variable" "HEADRACE_REDIS_URL" "name" $v.redis.existingSecret "key" $v.redis.urlKey) }}
{{- end }}
{{- if and (has "webhooks" .secrets) $v.webhooks.existingSecret }}
{{- $found = append $found (dict "variable" "HEADRACE_WEBHOOK_SECRETS" "name" $v.webhooks.existingSecret "key" $v.webhooks.key) }}
{{- end }}
{{- if has "flower" .secrets }}
{{- $found = append $found (dict "variable" "FLOWER_BASIC_AUTH" "name" $v.flower.existingSecret "key" $v.flower.key) }}
{{- end }}
{{- if has "key" .secrets }}
{{- $found = append $found (dict "variable" "HEADRACE_API_KEY" "name" .keySecret "key" "key") }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- /*
A pod of Headrace, with its metadata. dict:
  root, component, values (image, resources, …), container (its name), args, secrets (redis, webhooks, flower, key), s3,
  env (list), grace (seconds), probes and ports (YAML), shm, modelsVolume, homeVolume, restartPolicy, files (a ConfigMap)
*/ -}}
{{- define "headrace.pod" -}}
{{- $v := .root.Values }}
{{- $full := include "headrace.fullname" .root }}
{{- $asFiles := eq $v.secretsAs "file" }}
{{- $secrets := include "headrace.secrets" . | fromJsonArray -}}
metadata:
  labels: {{- include "headrace.labels" . | nindent 4 }}
  annotations:
    checksum/settings: {{ toYaml $v.settings | sha256sum }}
    {{- if not $v.apply.enabled }}
    checksum/models: {{ list (include "headrace.models" .root) $v.files | toJson | sha256sum }}
    {{- end }}
    {{- with $v.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  # The variables of a Service named headrace look like settings.
  enableServiceLinks: false
  automountServiceAccountToken: {{ eq .component "keys" }}
  serviceAccountName: {{ $full }}{{ if eq .component "keys" }}-keys{{ end }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .grace }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "runtimeClassName" "priorityClassName" "topologySpreadConstraints" "initContainers" }}
  {{- with get $.values $key }}
  {{ $key }}: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: {{ .container | default .component }}
      image: {{ include "headrace.image" (dict "root" .root "image" .values.image) }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command: {{ toJson .args }}
      env:
        {{- if $v.settings }}
        - {name: HEADRACE_CONFIG, value: configs/settings.yaml}
        {{- end }}
        {{- if not $v.redis.existingSecret }}
        - {name: HEADRACE_REDIS_URL, value: {{ $v.redis.url | default (printf "redis://%s-redis:6379/0" $full) | quote }}}
        {{- end }}
        {{- range $secrets }}
        {{- if $asFiles }}
        - {name: {{ .variable }}_FILE, value: /etc/headrace/secrets/{{ .variable }}}
        {{- else }}
        - name: {{ .variable }}
          valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
        {{- end }}
        {{- end }}
        {{- range .env }}
        - {{ toYaml . | nindent 10 | trim }}
        {{- end }}
        {{- with .values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- if and .s3 $v.s3.existingSecret }}
      envFrom:
        - secretRef: {name: {{ $v.s3.existingSecret }}}
      {{- end }}
      {{- with .ports }}
      ports: {{- . | nindent 8 }}
      {{- end }}
      {{- with .probes }}{{ . | nindent 6 }}{{ end }}
      {{- with .values.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /var/lib/headrace}
        {{- if or $v.models $v.files $v.settings }}
        - {name: configs, mountPath: /srv/headrace/configs, readOnly: true}
        {{- end }}
        {{- if and $secrets $asFiles }}
        - {name: secrets, mountPath: /etc/headrace/secrets, readOnly: true}
        {{- end }}
        {{- if .files }}
        - {name: files, mountPath: /etc/headrace/files, readOnly: true}
        {{- end }}
        {{- if .shm }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- if .modelsVolume }}
        - {name: models, mountPath: /srv/headrace/models, readOnly: true}
        {{- end }}
        {{- with concat $v.extraVolumeMounts (.values.extraVolumeMounts | default list) }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    - name: home
      {{- toYaml (.homeVolume | default (dict "emptyDir" dict)) | nindent 6 }}
    {{- if or $v.models $v.files $v.settings }}
    - name: configs
      configMap: {name: {{ $full }}-configs}
    {{- end }}
    {{- if and $secrets $asFiles }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- range $secrets }}
          - secret: {name: {{ .name }}, items: [{key: {{ .key }}, path: {{ .variable }}}]}
          {{- end }}
    {{- end }}
    {{- with .files }}
    - name: files
      configMap: {name: {{ . }}}
    {{- end }}
    {{- with .shm }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ . }}}
    {{- end }}
    {{- with .modelsVolume }}
    - name: models
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with concat $v.extraVolumes (.values.extraVolumes | default list) }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}

{{- /* A probe by a command of Headrace, which starts a Python. */ -}}
{{- define "headrace.probe" -}}
exec: {command: {{ toJson . }}}
periodSeconds: 15
timeoutSeconds: 10
failureThreshold: 3
{{- end }}

{{- /* Values that cannot work together. */ -}}
{{- define "headrace.check" -}}
{{- $v := .Values }}
{{- if and $v.redis.url $v.redis.existingSecret }}{{ fail "redis.url and redis.existingSecret are both set: unset one of them" }}{{ end }}
{{- if contains "@" $v.redis.url }}{{ fail "redis.url has a password: put the URL into a Secret and name it in redis.existingSecret" }}{{ end }}
{{- if and $v.redis.url $v.redis.server.enabled }}{{ fail "redis.url names another server: set redis.server.enabled to false" }}{{ end }}
{{- if not (or $v.redis.url $v.redis.existingSecret $v.redis.server.enabled) }}{{ fail "there is no Redis: set redis.existingSecret, redis.url or redis.server.enabled" }}{{ end }}
{{- if and $v.pipelines (not $v.models) }}{{ fail "pipelines without models: set models too, as both make the models file" }}{{ end }}
{{- if and $v.flower.enabled (not $v.flower.existingSecret) }}{{ fail "flower.enabled needs flower.existingSecret, with user:password" }}{{ end }}
{{- if not (regexMatch "^[a-z]" (include "headrace.fullname" .)) }}{{ fail "the release's name begins with a digit, which no Service may: choose another name" }}{{ end }}
{{- range $key, $use := dict "redis_url" "redis.url or redis.existingSecret" "webhook_secrets" "webhooks.existingSecret" "tls_cert_file" "ingress.tlsSecret" "tls_key_file" "ingress.tlsSecret" "host" "api.service" "port" "api.service.port" "stop_delay_s" "api.stopDelaySeconds" "drain_timeout_s" "drainSeconds of workerDefaults, a pool or background" "worker_labels" "labels of workerDefaults or a pool" "flower_host" "flower" "flower_port" "flower" }}
{{- if hasKey $v.settings $key }}{{ fail (printf "settings.%s is not for pods of this chart: remove it, and see %s in values.yaml" $key $use) }}{{ end }}
{{- end }}
{{- $limit := dig "limits" "memory" "" ($v.redis.server.resources | default dict) }}
{{- $bytes := include "headrace.bytes" $limit | float64 }}
{{- if and $v.redis.server.enabled (gt $bytes 0.0) (lt $bytes (mulf 1.5 (include "headrace.bytes" $v.redis.server.maxmemory | float64))) }}{{ fail (printf "redis.server: the limit of memory %v is less than 1.5 times maxmemory %s: raise resources.limits.memory, or lower maxmemory" $limit $v.redis.server.maxmemory) }}{{ end }}
{{- range $list := list "workers" "keys" }}
{{- $names := list }}{{ range get $v $list }}{{ if has .name $names }}{{ fail (printf "%s: the name %s is there twice" $list .name) }}{{ end }}{{ $names = append $names .name }}{{ end }}
{{- end }}
{{- if and $v.api.autoscaling.enabled (gt (int $v.api.autoscaling.minReplicas) (int $v.api.autoscaling.maxReplicas)) }}{{ fail "api.autoscaling: minReplicas is greater than maxReplicas" }}{{ end }}
{{- if and $v.ingress.enabled (not $v.ingress.host) }}{{ fail "ingress.enabled needs ingress.host" }}{{ end }}
{{- $open := false }}
{{- range $pool := $v.workers }}
{{- $models := ternary .models $v.workerDefaults.models (hasKey . "models") }}
{{- if not $models }}{{ $open = true }}{{ end }}
{{- range $models }}{{ if not (hasKey $v.models .) }}{{ fail (printf "workers: the pool %s names the model %s, which is not in `models`" $pool.name .) }}{{ end }}{{ end }}
{{- end }}
{{- if not $open }}
{{- range $name, $_ := $v.models }}{{ if not (has $name (include "headrace.listed" $ | fromJsonArray)) }}{{ fail (printf "the model %s is in no pool: add it to the `models` of one, or add a pool without `models`" $name) }}{{ end }}{{ end }}
{{- end }}
{{- $key := $v.keda.existingSecret }}{{ range $v.keys }}{{ if eq .name "metrics" }}{{ $key = .name }}{{ end }}{{ end }}
{{- $asks := or $v.monitoring.serviceMonitor.enabled (regexMatch `"scale":"(object|job)"` (list $v.workers $v.workerDefaults | toJson)) }}
{{- if and $asks (not $key) (ne (toString $v.settings.auth) "off") }}{{ fail "KEDA and Prometheus need an API key: add the key metrics to `keys`, or set keda.existingSecret" }}{{ end }}
{{- range $pool := $v.workers }}
{{- if gt (len (printf "%s-worker-%s" (include "headrace.fullname" $) .name)) 46 }}{{ fail (printf "workers: the pool %s makes names of pods that are too long for a host's name: shorten it, or the release's" .name) }}{{ end }}
{{- end }}
{{- end }}
